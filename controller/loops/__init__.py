"""The loops: gather facts, let core decide, commit in one transaction, then act. They see only ports."""
