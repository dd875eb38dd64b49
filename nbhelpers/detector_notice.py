"""What must stand beside every score: the one sentence for reports, cards, sheets and tables."""

from __future__ import annotations

NO_EVIDENCE = (
    "A score is no evidence of misconduct. It says how much a program resembles the AI-written and "
    "the human programs of one training set; it cannot say who wrote it, and some human work is "
    "called AI by it. Nobody may be accused, graded or punished on it: talk with the author, "
    "and look at drafts, history and understanding."
)
NO_EVIDENCE_SIMILAR = (
    "Similarity is no evidence of misconduct: people who solve the same task write alike. Read "
    "both programs before you ask anybody anything."
)
