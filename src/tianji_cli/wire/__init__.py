"""All that crosses a process boundary: the control channel and its messages, and every binary record."""
