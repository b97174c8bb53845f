"""What the checks of parts share: judging modules call by call, and the words for each mistake."""
