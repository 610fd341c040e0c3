"""What the checker looks for, a module for each kind of evidence. Each is a function from Evidence to violations."""
