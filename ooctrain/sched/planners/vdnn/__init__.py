"""vDNN: which layers leave the device, and when they come back."""
