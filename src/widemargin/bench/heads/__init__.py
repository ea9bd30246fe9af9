"""`widemargin bench head`: time, memory and gradients of heads, ours beside others', in one run."""
