"""The commands, one a file; each adds its options to the parser and carries them out."""
