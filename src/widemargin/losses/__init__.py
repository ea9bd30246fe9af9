"""The losses: margins, losses on pairs, classical ones; their registry and the grammar of loss strings."""
