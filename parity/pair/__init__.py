"""Records a training of any kind: its tensors, under names that both sides share."""
