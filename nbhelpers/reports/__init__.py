"""What a run or a study reports, as text and as HTML, with figures."""
