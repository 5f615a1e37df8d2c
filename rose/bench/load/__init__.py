"""An open-loop load on a running server, any that speaks OpenAI's API.

Ours rather than aiperf or guidellm, which bring 1.2 to 2.9 GB of environment and no result keys that vLLM's users know;
this needs httpx only. Its figures are comparable with theirs: the definitions are `vllm bench serve`'s.
"""
