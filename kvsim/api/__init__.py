"""kvsim from Python: a run in one call, on a machine given by name, and a result that can be looked at.

The commands and these functions are two faces of the same rooms below. What is given may be named, as on the command
line: a recording by its folder or by the name under which it ships, a machine as "H200/Llama-3-8B", a policy as
"paged". `import kvsim` offers everything in here; nothing is loaded before it is used.
"""
