"""The same configs through several releases of Triton and Helion: what compiles, and into what."""
