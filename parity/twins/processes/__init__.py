"""What the processes of one training have in common: how they meet, keep watch and exchange."""
