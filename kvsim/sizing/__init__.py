"""How large the pool of KV blocks is: a GPU's memory, term by term, and what vLLM measures when it starts."""
