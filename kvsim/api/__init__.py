"""kvsim from Python: a run in one call, on a machine given by name, and a result that can be looked at.

Each function does what the command of the same name does, with the same code. An argument may be a name, as on the
command line: a recording by its folder or by the name under which it ships, a machine as "H200/Llama-3-8B", a policy
as "paged". `import kvsim` offers everything in here; a module is loaded when it is first used.
"""
