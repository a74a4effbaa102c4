"""Who runs where and who is connected to whom: pure data, which starts no process and opens no socket."""
