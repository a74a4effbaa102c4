"""The plan of processes and the graph of their connections: pure data, without processes or sockets."""
