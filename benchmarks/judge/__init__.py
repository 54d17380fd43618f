"""The judge of class labels over short trainings: recorded once, judged as often as a judge changes."""
