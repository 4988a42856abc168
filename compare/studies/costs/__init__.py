"""What each DSL costs beside its speed: compiling, launching, tracing, tuning, scratch."""
