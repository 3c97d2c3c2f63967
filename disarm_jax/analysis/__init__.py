"""What trained models tell about estimators: their variance, bias and time at checkpoints."""
