"""prompts.py - prompts of many kinds for tests that compare outputs: languages, code, emoji, white space, 1 to 1,500 tokens."""

_STORY = ("The lighthouse keeper counted the ships each evening and wrote their names into a ledger bound in blue cloth. "
          "On the ninth of March a vessel without a name came round the cape, and the keeper left the line empty. ")

PROMPTS = [
    "A",
    "Hello",
    "What is the capital of France?",
    "Wie heißt die Hauptstadt von Österreich, und was isst man dort?",
    "Quelle est la différence entre une pêche et un abricot ?",
    "¿Cuántos días tiene un año bisiesto? Explícalo despacio.",
    "日本の首都はどこですか。人口も教えてください。",
    "Столица России — город",
    "ما هي عاصمة مصر؟",
    "भारत की राजधानी क्या है?",
    "Emoji: 😀😃😄 🚀🌍 👩‍👩‍👧‍👦 🏳️‍🌈 mean",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    if n < 2:\n        return n\n",
    "#include <stdio.h>\n\nint main(void)\n{\n\tfor (int i = 0; i < 10; i++)\n\t\tprintf(",
    "SELECT name, COUNT(*) FROM users WHERE created_at > '2024-01-01' GROUP BY",
    "{\"id\": 17, \"tags\": [\"a\", \"b\"], \"nested\": {\"x\": null}}",
    "1 2 3 4 5 6 7 8 9 10 11 12 13",
    "   leading and    inner   spaces\n\n\n\tand tabs\t\tand line breaks\n",
    "Once upon a time " * 20,
    _STORY * 3,
    "List of words: " + " ".join(f"word{i}" for i in range(120)),
    _STORY * 10,
    _STORY * 30,
]
