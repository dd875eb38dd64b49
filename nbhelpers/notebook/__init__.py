"""Parts that only a notebook needs: picker, environment check, headless runs."""
