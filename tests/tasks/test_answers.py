"""Reading of final answers, in the forms in which models write them."""

import time

import pytest

from speccascade.tasks import answers

LETTERS = {
  "A": [
    "The answer is (a).",
    "The answer is A because the sum is 4.",
    "The answer is A, since 2 + 2 = 4.",
    "Answer: A\nExplanation: sums",
    "Answer: A. 4",
    "The answer is (A) Paris.",
    "Answer: (A) A dog",
    "A) 4",
    "A. Paris",
    "The answer is A.",
    "A",
    "Answer A",
  ],
  "B": [
    "B",
    "Answer: B",
    "Answer: *B*",
    "the answer is (A) no, the answer is (B).",
    "I would choose B.",
    "Answer: B because of it",
    "answer: b",
    "B\n\nExplanation: A dog is no cat.",
    "Let me think. It is small.\nB",
    "The answer is not (A) but (B)",
    "So (B) is right. (C) is wrong.",
    "it is (B). (C) is incorrect",
    "Choice (B)",
    "The answer is B, and A is wrong.",
    "The answer is (B), (C) is wrong",
    "The correct answer is **(B) Rome**.",
  ],
  "C": [
    " (C) ",
    "The answer is **C**.",
    "C. Paris",
    "C: Paris",
    "(C) Paris",
    "C - Paris",
    "**C**",
    "**C. Paris**",
    "**C) Paris**",
    "ANSWER: C",
    "Final Answer: C",
    "FINAL ANSWER: (C)",
    "Correct answer: C",
    "**Answer: C**",
    "**Answer:** C",
    "### Answer\nC",
    "Answer:\n\n**C**",
    "Answer - C",
    "Answer:-C",
    "Answer -> C",
    r"\boxed{C}",
    r"\boxed{\text{C}}",
    r"The final answer is $\boxed{C}$.",
    r"\boxed{\textbf{(C)}}",
    r"\boxed{C. Paris}",
    r"\boxed{\mathrm{c}}",
    "The correct answer is option C.",
    "The correct option is C",
    "The correct choice is (C) Paris",
    "The correct answer is:\n\n(C) Paris",
    "The answer is therefore C",
    "The answer would be C",
    "The answer to the question is C",
    "The answer is $C$.",
    'The answer is "C"',
    "The answer is 'C'.",
    "The answer is `C`",
    "The answer is [C]",
    "the answer is c.",
    "c)",
    "[[C]]",
    "<answer>C</answer>",
    '{"answer": "C"}',
    "Thus, option C is correct.",
    "(C) is correct, while (A) and (B) are not.",
    "C is the correct answer.",
    "Option C",
    "Therefore, C.",
    "So it must be C.",
    "I think the answer is C, not B.",
    "Answer: C. The answer explains why (A) fails.",
    "A. too small\nB. too large\nC. right\nD. no\nThe answer is C",
    "(A) no\n(B) no\nso (C)",
    "C. elegans has 302 neurons",
  ],
  "D": [
    "The answer is D",
    "d",
    "Answer: D Rome",
    "(A) and (B) fail, hence (D)",
    "The correct answer for this problem is (D).",
    r"**Final Answer**: $\boxed{D}$",
  ],
  None: [
    "",
    "E",
    "A cat",
    "Dogs bark.",
    "Better Call Saul",
    "the answer is Apple",
    "the answer is a dog",
    "Answer: A dog barks",
    "the answer is A Midsummer Night's Dream",
    "The answer is vitamin C",
    "It is hepatitis B.",
    "The answer is C-reactive protein",
    "The answer is D'Alembert",
    "The answer is C++",
    "Answer: B12",
    # Two choices are none, and so are all four.
    "The answer is A or B",
    "The answer is (B) and (C)",
    "The answer is both A and B.",
    "Answer: A/B",
    "A. too small\nB. too large\nC. right\nD. no",
    "(A) too small\n(B) no\n(C) yes\n(D) no",
    "Q: what?\nA: Paris",
  ],
}

NUMBERS = {
  "She has 5 + 7 = 12.\n#### 12": 12,
  "#### 1,234,567": 1234567,
  "first #### 3 then #### 4": 4,
  "#### -7": -7,
  "#### $18": 18,
  "#### **18**": 18,
  r"#### \boxed{18}": 18,
  "#### x = 18": 18,
  "#### 1/2": 0.5,
  "#### Answer: 18": 18,
  "#### The answer is 18": 18,
  "#### Final Answer\n18": 18,
  "#### 20 dollars for 3 days": 20,
  "12 apples #### none": None,
  # Headings of Markdown are not marks.
  "#### Step 2: double\n7 * 2 = 14, she has 14.": 14,
  "#### Step 2: double it": None,
  "#### 2. Compute the total\n7 * 2 = 14": 14,
  "#### 14\n#### Check\nThat is right on 3 days": 14,
  "the total is $1,200.50.": 1200.5,
  "The total is $10{,}000$.": 10000,
  r"10\,000": 10000,
  "10\u202f000": 10000,
  "1,00,000": 100000,
  "pages 1,2,3": 3,
  "16-18": 18,
  "10-3=7": 7,
  "about .5 of it": 0.5,
  "wait...5": 5,
  "18.": 18,
  "no number": None,
  "So -$7": -7,
  "$-7 left": -7,
  "The answer is \N{MINUS SIGN}7.": -7,
  r"\$18.00": 18,
  "Total cost: £3.50": 3.5,
  r"\( 9 \times 2 = 18 \)": 18,
  r"\boxed{7 \cdot 2 = 14}": 14,
  r"The answer is $28 \div 2 = 14$": 14,
  r"\boxed{18}": 18,
  r"\boxed{\text{18 dollars}}": 18,
  r"The answer is $\boxed{\frac{3}{4}}$ in 5 days": 0.75,
  "it takes 2 1/2 hours": 2.5,
  r"The answer is $3 \times 10^{6}$": 3000000,
  # What follows the answer is not the answer, and steps are not either.
  "The answer is 18. This assumes 7 days a week.": 18,
  "**Answer:** $18 per day for 5 days": 18,
  "The final answer is: 1,018 eggs": 1018,
  "The answer is 5 + 3 = 8": 8,
  "The answer is 3 times 5, so 15": 15,
  "Answer: 20% of 50 is 10": 10,
}


@pytest.mark.parametrize(
  ("text", "expected"),
  [(text, choice) for choice, texts in LETTERS.items() for text in texts],
)
def test_letter(text, expected):
  assert answers.letter(text) == expected


@pytest.mark.parametrize(("text", "expected"), NUMBERS.items())
def test_number(text, expected):
  answer = answers.number(text)
  assert answer == expected if expected is None else float(answer) == expected


def test_long_texts_take_no_square_of_their_length():
  # Models that repeat themselves write such texts. The square of the length
  # would take minutes for some of them; a second is a hundred times what they
  # take together.
  start = time.process_time()
  for unit in ("\n", " ", "(", "1,", "answer", "the answer to ", "#### ", "A "):
    answers.letter(unit * (4000 // len(unit)))
    answers.number(unit * (4000 // len(unit)))
  assert time.process_time() - start < 1
