"""Storage of experience: `RolloutBuffer`."""
