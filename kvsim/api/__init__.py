"""kvsim from Python: a run in one call, on a machine given by name, and a result that can be drawn and played.

Each function runs the code of the command with the same name. An argument may be a name as on the command
line: a recording by its folder or by the name of one that comes with kvsim, a machine as "H200/Llama-3-8B", a policy as
"paged".
"""
