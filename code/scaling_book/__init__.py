"""What makes this book: evidence behind the claims, and the site that shows it."""
