"""One file per table or figure of the ArcGrad paper: what it costs, what to expect, and how to make it again."""
