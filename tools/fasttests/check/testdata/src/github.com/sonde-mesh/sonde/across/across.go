package across
