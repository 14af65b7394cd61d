"""A router: the server that has the prompt in its cache, but none whose pool is nearly full.

`kvsim run --replicas 3 --route examples/fullest_last.py` calls `route` for every request.
"""


def route(request, servers):
    """Return the number of the server with the longest hit among those with room, or of the emptiest one."""
    roomy = [server for server in servers if server.kv_usage < 0.9]
    if not roomy:
        return min(servers, key=lambda server: server.kv_usage).number
    return max(roomy, key=lambda server: (server.hit_tokens, -server.num_requests)).number
