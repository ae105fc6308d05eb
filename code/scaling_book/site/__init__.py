"""What makes the site: Sphinx extensions, build and checks, templates, style."""
