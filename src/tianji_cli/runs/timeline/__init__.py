"""What the processes of a run did from moment to moment: brought to one clock, as a file and as a picture."""
