"""What a network sees of its inputs, and how unlike those seen before that is: below every feature that asks."""
