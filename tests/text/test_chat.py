"""Renders published chat templates, and hostile ones."""

import json
import resource
import time

import pytest

from speccascade.text import chat, chat_process, chat_sandbox
from speccascade.text.chat import ChatError, ChatTemplate, format_messages

# After those of ChatML, Llama 3, Mistral, Qwen and Gemma: their use of jinja.
CHATML = """\
{% for message in messages %}
    {% if loop.first and messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\nBe brief.<|im_end|>\n' -}}
    {% endif %}
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'
+ '\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
LLAMA = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}{{- "Environment: ipython\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'
        + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("roles must alternate user/assistant") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"]
                + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {%- generation %}{{- " " + message["content"] + eos_token }}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}
"""
QWEN = """\
{%- if tools %}{{- tools | tojson }}{%- endif %}
{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and message.content is string %}
        {%- set ns.multi = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" and '</think>' in message.content %}
        {%- set text = message.content.split('</think>')[-1].lstrip('\n') %}
    {%- else %}{%- set text = message.content %}{%- endif %}
    {%- if message.extra is defined %}{%- continue %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + text + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("roles must alternate user/assistant") }}
    {%- endif -%}
    {%- if message['role'] == 'assistant' -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {{ item['text'] | trim }}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": " Hi <b>\n"}
TURNS = [
  {"role": "system", "content": "Rhyme."},
  USER,
  {"role": "assistant", "content": "<think>\nso\n</think>\n\nBe."},
  {"role": "user", "content": "More."},
]


def render(source, messages=(USER,), **variables):
  return ChatTemplate(source, TOKENS).render(messages, **variables)


def test_published_templates():
  # Compared with apply_chat_template of transformers 5.23.
  assert render(CHATML) == (
    "<|im_start|>system\nBe brief.<|im_end|>\n"
    "<|im_start|>user\n Hi <b>\n<|im_end|>\n<|im_start|>assistant\n"
  )
  assert render(LLAMA, TURNS, date_string="1 May 2025") == (
    "<s><|start_header_id|>system<|end_header_id|>\n\n"
    "Today Date: 1 May 2025\n\nRhyme.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi <b><|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
    "<think>\nso\n</think>\n\nBe.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nMore.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
  )
  assert "Today Date: " in render(LLAMA)
  assert render(MISTRAL, TURNS) == (
    "<s>[INST]  Hi <b>\n[/INST] <think>\nso\n</think>\n\nBe.</s>"
    "[INST] Rhyme.\n\nMore.[/INST]"
  )
  assert render(QWEN, TURNS, enable_thinking=False) == (
    "<|im_start|>system\nRhyme.<|im_end|>\n"
    "<|im_start|>user\n Hi <b>\n<|im_end|>\n"
    "<|im_start|>assistant\nBe.<|im_end|>\n"
    "<|im_start|>user\nMore.<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
  )
  assert render(QWEN, [USER], add_generation_prompt=False).endswith("_end|>\n")
  assert render(GEMMA, [TURNS[0], USER, *TURNS[2:]]) == (
    "<s><start_of_turn>user\nRhyme.\n\nHi <b><end_of_turn>\n"
    "<start_of_turn>model\n<think>\nso\n</think>\n\nBe.<end_of_turn>\n"
    "<start_of_turn>user\nMore.<end_of_turn>\n<start_of_turn>model\n"
  )
  with pytest.raises(ChatError, match="roles must alternate user/assistant"):
    render(GEMMA, [USER, USER])
  tools = [{"name": "é<", "n": 1}]
  assert render(QWEN, tools=tools).startswith('[{"name": "é<", "n": 1}]<|im')


@pytest.mark.parametrize(
  ("source", "message"),
  [
    ("{% if %}", "the chat template, line 1: Expected an expression"),
    ("a\n{% endfor %}", "line 2: Encountered unknown tag 'endfor'"),
    ("{{ raise_exception('no\nsystem') }}", "the chat template: no system$"),
    ("{{ messages[0].text.strip() }}", "no attribute 'text'"),
    ("{{ messages[0].content + 1 }}", "can only concatenate"),
    ("{% include 'x' %}", "no loader"),
    ("{{ ''.__class__.__mro__ }}", "'__class__' of 'str' object is unsafe"),
    ("{{ cycler.__init__.__globals__ }}", "'__init__' of 'type' object is un"),
    ("{{ raise_exception.__globals__['os'] }}", "'__globals__' of 'function'"),
    ("{% set n = namespace() %}{% set n.__class__ = 1 %}", "in a namespace"),
    ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
    ("{{ messages[0].update(role='x') }}", "'update' of 'dict' object is un"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    (
      "{% set r = range(99999) %}{% for a in r %}{% for b in r %}"
      "{% endfor %}{% endfor %}",
      "loops over 1,000,000 turns",
    ),
    ("{{ range(10**9) | list }}", "Range too big"),
    ("{{ 'a' * 10**10 }}", "makes over 16,777,216"),
    ("{{ 10**10 * [1] }}", "makes over 16,777,216"),
    ("{{ 7**(10**9) }}", "makes over 16,777,216"),
    (
      "{% set s = 'a' * 10**7 %}{{ s }}{{ s }}",
      "writes over 16,777,216 characters",
    ),
  ],
)
def test_broken_and_hostile_templates_end_in_a_line(source, message):
  with pytest.raises(ChatError, match=message) as error:
    render(source)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  "source",
  [
    "{{ 'a' | center(10**11) }}",
    "{{ 'a'.ljust(10**10) }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{% set n = namespace(s='aa') %}{% for i in range(40) %}"
    "{% set n.s = n.s + n.s %}{% endfor %}{{ n.s | length }}",
    "{% set n = namespace(s=[1, 1]) %}{% for i in range(40) %}"
    "{% set n.s = n.s + n.s %}{% endfor %}{{ n.s | length }}",
    "{{ 'a\nb' | indent(10**10) }}",
    "{{ [1] | tojson(indent=10**10) }}",
    "{{ range(99999) | list | batch(10**9, 1) | list | length }}",
  ],
)
def test_no_template_fills_the_memory(source):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  begun = time.process_time()
  with pytest.raises(ChatError, match=r"more memory than it may|too large"):
    render(source)
  assert time.process_time() - begun < 5
  grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
  assert grown < 2**17  # KiB
  assert render("{{ messages[0].role }}") == "user"  # It continues.


def test_no_template_works_for_ever(monkeypatch):
  monkeypatch.setattr(chat_process, "_running", None)
  monkeypatch.setattr(chat_sandbox, "MOST_S", 1)
  slow = "{% set s = 'a' * 10**7 %}{% for i in range(99999) %}"
  slow += "{% set x = s.replace('a', 'b') %}{% endfor %}"
  with pytest.raises(ChatError, match="the chat template: takes over 1 s"):
    render(slow)
  assert render("{{ messages[0].role }}") == "user"  # A new process has begun.
  chat_process._running._process.kill()
  chat_process._running._process.wait()
  assert render("{{ messages[0].role }}") == "user"


def test_numbers_and_texts_multiply():
  assert render("{{ 2 ** 3 }} {{ 2 * 3.5 }} {{ 'ab' * 2 }} {{ 2 * '-' }}") == (
    "8 7.0 abab --"
  )


@pytest.mark.parametrize(
  "messages",
  ["Hi", [], [{}], [{"role": "user"}], [{"role": 1, "content": ""}], ["Hi"], 3],
)
def test_what_is_not_a_conversation_is_refused(messages):
  with pytest.raises(ChatError, match="wanted a list of objects with"):
    render(CHATML, messages)
  with pytest.raises(ChatError, match="are not JSON"):
    render(CHATML, [{"role": "user", "content": object()}])


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
WITH_TOOLS = """\
{%- for m in messages %}{{ m.role }}:
{%- if m.content %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{{- '\n' }}{% endfor %}"""


def test_tool_calls_need_no_content():
  for content in ({}, {"content": None}, {"content": ""}):
    messages = [
      {"role": "user", "content": "1 + 2?"},
      {"role": "assistant", "tool_calls": [CALL], **content},
      {"role": "tool", "content": "3"},
    ]
    called = '{"name": "add", "arguments": {"a": 1}}'
    assert render(WITH_TOOLS, messages) == (
      f"user:1 + 2?\nassistant:{called}\ntool:3\n"
    )
    assert f"assistant: [{json.dumps(CALL)}]" in format_messages(messages)
  assert chat.check_messages(messages[1:2])[0]["content"] == ""
  with pytest.raises(ChatError, match="wanted a list of objects with"):
    render(WITH_TOOLS, [{"role": "assistant", "tool_calls": []}])


def test_content_in_parts_is_one_text():
  parts = [{"type": "text", "text": "a"}, {"text": "b"}, "c"]
  message = {"role": "user", "content": parts}
  whole = {"role": "user", "content": "a\nb\nc"}
  for template in (CHATML, LLAMA, MISTRAL, QWEN):
    assert render(template, [message]) == render(template, [whole])
  assert format_messages([message]) == "a\nb\nc"
  assert message["content"] == parts
  for part in ({"type": "image_url", "image_url": "x"}, {"type": "text"}, 5):
    wrong = {"role": "user", "content": [*parts, part]}
    with pytest.raises(ChatError, match="only texts are read") as error:
      render(CHATML, [wrong])
    assert "\n" not in str(error.value)


def test_half_a_surrogate_pair_is_refused():
  half = json.loads(r'"a \ud83d"')
  for message in (
    {"role": "user", "content": half},
    {"role": "user", "content": [{"text": half}]},
    {"role": "user", "content": "", half: 1},
  ):
    with pytest.raises(ChatError, match=r"messages are .* half of a surrogate"):
      render(CHATML, [message])
  pair = json.loads(r'"a \ud83d\ude42"')
  assert "a \U0001f642" in render(CHATML, [{"role": "user", "content": pair}])
  for source, variables in ((half, {}), ("{{ x }}", {"x": half})):
    with pytest.raises(ChatError, match="the chat template: writes half of a"):
      render(source, **variables)


def test_messages_stay_as_they_are():
  messages = [dict(USER)]
  render("{% set m = messages[0] %}{{ m.content }}", messages)
  assert messages == [USER]
  assert format_messages(TURNS).splitlines()[0] == "system: Rhyme."
  assert chat.check_messages([USER]) == [USER]
