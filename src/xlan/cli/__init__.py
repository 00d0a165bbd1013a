"""Everything → terminal. Nobody imports this folder."""
