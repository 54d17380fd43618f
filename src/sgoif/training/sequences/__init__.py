"""The task of language models: sequences are scored against groups of evaluation sequences. Experimental."""
