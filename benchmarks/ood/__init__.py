"""Out-of-distribution inputs: our scorer beside the detectors that need no training of their own.

Nothing here is tuned on a pair that is reported: settings are those of the
detectors' papers, or the library's defaults.
"""
