"""What a run will need and send, worked out before any device is there."""
