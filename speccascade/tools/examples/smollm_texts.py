"""The prompts of SmolLM2: questions, sums, and texts to copy from.

All texts were written for this project.
"""

_HARBOUR = (
  "The old harbour town of Marlow lies at the mouth of the river Tamsin, where"
  " fishing boats have landed their catch for four centuries. In 1854 a stone"
  " pier was built, and with it came the herring trade, which made the town"
  " rich for two generations. Today most of the boats are gone, and visitors"
  " come for the museum, the lighthouse and the long sandy beach."
)
_MINUTES = (
  "Minutes of the garden club, 3 May. Present: Ines, Paul, Rahel, Tom. Ines"
  " reported that the new beds by the south wall are planted with beans and"
  " marigolds. Paul will repair the pump before the end of the month. Rahel"
  " asked for twelve bags of compost. Tom keeps the key of the shed until June."
)
_CODE = (
  "def area(width, height):\n    return width * height\n\n\ndef volume(width,"
  " height, depth):\n    return area(width, height) * depth\n"
)

TEXTS = {
  "questions": (
    "Why is the sky blue?",
    "Name three ways to save water at home, and say how each of them works.",
    "What is the difference between a virus and a bacterium?",
    "Explain to a child what a library is for.",
    "Give me a recipe for pancakes.",
  ),
  "sums": (
    "A baker has 48 rolls and sells 5 bags of 6 rolls. How many are left? Think"
    " step by step.",
    "Ines reads 12 pages a day. How long does she take for a book of 180 pages?"
    " Think step by step.",
    "A train leaves at 9:40 and arrives at 12:15. How long does it take? Think"
    " step by step.",
    "Tom buys 3 pens for 2 dollars each and a pad for 4 dollars. He pays with"
    " a 20 dollar note. What does he get back? Think step by step.",
    "A tank holds 90 litres and loses 4 litres an hour. What does it hold after"
    " 7 hours? Think step by step.",
  ),
  "copying": (
    f"Copy the following text word for word.\n\n{_HARBOUR}",
    "Correct the spelling of this text, and change nothing else.\n\n"
    + _HARBOUR.replace("centuries", "centurys").replace("visitors", "visiters"),
    f"Write this text again with 'village' in place of 'town'.\n\n{_HARBOUR}",
    f"List who does what, in the words of the text.\n\n{_MINUTES}",
    f"Add a docstring to each function.\n\n```python\n{_CODE}```",
  ),
}
