"""What the author's code is given: the context of a run or a tool call, whom it acts for, memory."""
