"""Wrong vocabularies, prompts and answers; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== text/byte_vocabulary.py
half of a letter is shown <- test_letters_that_are_not_whole
@ ByteVocabulary.whole
- return places[-len(begun)] if begun else len(ids)
+ return len(ids)
bytes beside half of a letter are side by side <- test_what_is_not_utf8
- .decode("utf-8", "replace")
+ .decode("utf-8", "ignore")

=== tasks/few_shot.py
shots with an answer come first <- test_shots_take_turns
@ draw
- itertools.zip_longest(*kinds)
+ kinds
a blank line of a shot ends an output <- test_no_answer_of_a_shot
@ FewShotTask._in_a_shot
- return re.sub(r"\\n\\s*\\n", "\\n", answer)
+ return answer

=== tasks/few_shot_tasks.py tasks/test_few_shot.py
what is scored may be a shot <- test_mistakes
@ register
- spec.ids is None
+ False
a copy of what is scored may be a shot <- test_mistakes
@ _check_no_copies
- filecmp.cmp(shot, test, shallow=False)
+ False
shots are of the first lines of a file <- test_long_files_are_drawn_from
@ _candidates
- np.linspace(0, num - 1, most)
+ np.linspace(0, most - 1, most)

=== tasks/squad.py tasks/test_quality.py::test_squad_by_hand
articles are looked for before hyphens go
@ normalized
- text = _ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION))
+ text = _ARTICLE.sub(" ", text.lower()).translate(_PUNCTUATION)
F1 is of the first answer
@ scores
- max(f1(answer, each) for each in wanted)
+ f1(answer, wanted[0])
a word counts once
@ f1
- collections.Counter(words) & collections.Counter(wanted)
+ collections.Counter({*words} & {*wanted})
no answer is wrong beside answers that are nothing
@ scores
- [each for each in map(normalized, references) if each] or [""]
+ [*map(normalized, references)]
an answer that normalizes to nothing is none <-
  test_quality.py::test_questions_without_an_answer_are_scored_by_themselves
@ has_answer
- any(each.strip() not in ("", NO_ANSWER) for each in references)
+ any(normalized(each) for each in references)

=== tasks/corpus_scores.py tasks/test_quality.py
a score of some questions is of all <-
  test_questions_without_an_answer_are_scored_by_themselves
@ mean
- pairs = np.stack([values * is_in, is_in], axis=1)
+ pairs = np.stack([values * is_in, np.ones_like(values)], axis=1)
""")
