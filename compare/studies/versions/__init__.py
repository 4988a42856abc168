"""The same configs through several releases of Triton: what compiles, and into what."""
