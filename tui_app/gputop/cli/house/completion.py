"""``gputop completion SHELL``: what the shell completes, made from the table of commands."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from gputop.cli.commands import COMMANDS
from gputop.cli.parsing import Parser

SHELLS = ("bash", "zsh", "fish")
_RUNS = '"${GPUTOP_RUNS_DIR:-${XDG_STATE_HOME:-$HOME/.local/state}/gputop/runs}"'
_BEFORE_A_COMMAND = ("run", "check", "dryrun")
"""Commands after which the user's own command stands."""


class CompletionWords(NamedTuple):
    """What can stand after a command."""

    name: str
    summary: str
    options: tuple[tuple[str, str], ...]
    """Long options and their meaning."""
    choices: dict[str, tuple[str, ...]]
    """Values by option."""
    takes_value: tuple[str, ...]
    parts: tuple[str, ...]
    """Words of its own: ``list`` of ``catalog list``."""
    names_runs: bool


def execute(words: list[str]) -> int:
    """Print the script of a shell."""
    options = parser().parse_args(words)
    command_words = [words_of(command.name) for command in COMMANDS]
    print({"bash": bash, "zsh": zsh, "fish": fish}[options.shell](command_words), end="")
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "completion",
        "Print a script that completes commands, options and runs.",
        epilog='bash: eval "$(gputop completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc '
        "after compinit; fish: gputop completion fish > "
        "~/.config/fish/completions/gputop.fish",
    )
    parser.example = "gputop completion bash"
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    return parser


def words_of(name: str) -> CompletionWords:
    """All that a command takes, from its option parsers."""
    command = next(item for item in COMMANDS if item.name == name)
    parsers = command.options()
    actions = [action for parser in parsers for action in parser._actions]
    shown = [item for item in actions if item.help != argparse.SUPPRESS]
    options = {
        option: action
        for action in shown
        for option in action.option_strings
        if option.startswith("--")
    }
    places = [item for item in shown if not item.option_strings]
    fixed = [str(choice) for item in places for choice in item.choices or ()]
    inner = [parser.prog.split()[2] for parser in parsers if len(parser.prog.split()) > 2]
    return CompletionWords(
        name=name,
        summary=command.summary,
        options=tuple((option, _meaning(action, name)) for option, action in options.items()),
        choices={
            option: tuple(map(str, action.choices))
            for option, action in options.items()
            if action.choices
        },
        takes_value=tuple(option for option, action in options.items() if action.nargs != 0),
        parts=tuple(dict.fromkeys([*inner, *fixed])),
        names_runs=any(str(item.metavar) in ("RUN", "A", "B") for item in places),
    )


def _meaning(action: argparse.Action, command: str) -> str:
    text = (action.help or "") % {**vars(action), "prog": command}
    return " ".join(text.split())


def bash(commands: list[CompletionWords]) -> str:
    """A function for ``complete -F``."""
    cases = []
    for command in commands:
        words = [*command.parts, *(option for option, _ in command.options)]
        runs = " $(_gputop_runs)" if command.names_runs else ""
        cases.append(f'    {command.name}) words="{" ".join(words)}{runs}" ;;')
    values = [
        f'    {command.name}:{option}) words="{" ".join(choices)}" ;;'
        for command in commands
        for option, choices in command.choices.items()
    ]
    with_value = sorted({option for command in commands for option in command.takes_value})
    names = " ".join(command.name for command in commands)
    return f"""\
# gputop completion bash
_gputop_runs() {{
  local folder={_RUNS}
  echo last
  [ -d "$folder" ] && command ls -1t "$folder" 2>/dev/null
}}
_gputop() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local name=${{COMP_WORDS[1]}}
  local words="" index
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{names} help --help --version" -- "$word"))
    return
  fi
  case "$name" in
    {"|".join(_BEFORE_A_COMMAND)})
      index=2
      while [ "$index" -lt "$COMP_CWORD" ]; do
        case "${{COMP_WORDS[index]}}" in
          --) index=$((index+1)); break ;;
          {"|".join(with_value)}) index=$((index+2)) ;;
          -*) index=$((index+1)) ;;
          *) break ;;
        esac
      done
      if [ "$index" -lt "$COMP_CWORD" ] && declare -F _command_offset >/dev/null; then
        _command_offset "$index"
        return
      fi ;;
  esac
  case "$name:$before" in
{chr(10).join(values)}
  esac
  if [ -z "$words" ]; then
    case "$name" in
{chr(10).join(cases)}
    help) words="{" ".join(command.name for command in commands)}" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _gputop gputop
"""


def zsh(words: list[CompletionWords]) -> str:
    """A function for ``compdef``."""
    cases = []
    for command in words:
        specs = [_zsh_option(command, option, text) for option, text in command.options]
        if command.parts:
            specs.append(f"'1:what:({' '.join(command.parts)})'")
        elif command.names_runs:
            specs.append("'*:run:_gputop_runs'")
        elif command.name in _BEFORE_A_COMMAND:
            specs.append("'*::command:_normal'")
        else:
            specs.append("'*:file:_files'")
        cases.append(f"    {command.name}) _arguments -S {' '.join(specs)} ;;")
    commands = "\n".join(f"    {_quoted(f'{command.name}:{command.summary}')}" for command in words)
    return f"""\
#compdef gputop
# gputop completion zsh
_gputop_runs() {{
  local folder={_RUNS}
  local -a runs
  runs=(last $folder/*(N/om:t))
  compadd -a runs
}}
_gputop() {{
  local -a commands
  commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local name=$words[2]
  shift words
  (( CURRENT-- ))
  case $name in
{chr(10).join(cases)}
  esac
}}
compdef _gputop gputop
"""


def _zsh_option(words: CompletionWords, option: str, text: str) -> str:
    plain = text.replace("[", "(").replace("]", ")").replace(":", " ")
    value = ""
    if option in words.takes_value:
        choices = words.choices.get(option)
        if choices:
            value = f":value:({' '.join(choices)})"
        else:
            value = ":value:_files"
    return _quoted(f"{option}[{plain}]{value}")


def fish(words: list[CompletionWords]) -> str:
    """Lines of ``complete``."""
    lines = [
        "# gputop completion fish",
        "function __gputop_runs",
        "    set -l folder $GPUTOP_RUNS_DIR",
        '    test -n "$folder"; or set folder (set -q XDG_STATE_HOME; and echo $XDG_STATE_HOME; '
        "or echo ~/.local/state)/gputop/runs",
        "    echo last",
        "    command ls -1t $folder 2>/dev/null",
        "end",
        "complete -c gputop -f",
    ]
    for command in words:
        lines.append(
            "complete -c gputop -n __fish_use_subcommand -a "
            f"{command.name} -d {_quoted(command.summary)}"
        )
        here = f"complete -c gputop -n '__fish_seen_subcommand_from {command.name}'"
        for option, text in command.options:
            line = f"{here} -l {option[2:]} -d {_quoted(text)}"
            if option in command.takes_value:
                choices = command.choices.get(option)
                if choices:
                    line += f" -x -a {_quoted(' '.join(choices))}"
                else:
                    line += " -r -F"
            lines.append(line)
        if command.parts:
            lines.append(f"{here} -a {_quoted(' '.join(command.parts))}")
        if command.names_runs:
            lines.append(f"{here} -a '(__gputop_runs)'")
        elif command.name in _BEFORE_A_COMMAND:
            lines.append(f"{here} -a '(__fish_complete_subcommand --fcs-skip=2)'")
        elif not command.parts:
            lines.append(f"{here} -F")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """One word for any of the shells; an apostrophe becomes a typographic one."""
    return "'" + text.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}").replace("\\", "") + "'"
