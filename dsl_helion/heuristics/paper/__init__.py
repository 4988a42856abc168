"""What the paper would choose."""
