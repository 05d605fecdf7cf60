"""What controller and workers agree on: states, messages, files, tables. Imports no other package of ours."""
