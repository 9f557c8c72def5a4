"""The processes of one training: how they find each other, keep watch, and exchange what is not a gradient."""
