# Completion of `python -m harness` in bash: commands, groups, keys and their values. source harness/console/completion.bash
# (Hydra's own, `-sc install=bash`, knows programs that are files only; it answers the question here, too.)
_kvlab() {
  case $COMP_LINE in *"-m harness "*) ;; *) return ;; esac
  local said=${COMP_LINE#*-m harness} commands=""
  local line="harness$said" word=${said##* }
  [[ $said == " $word" ]] && commands="check compare compile inspect list report resume tables"
  local choices
  choices=$(COMP_LINE=$line COMP_POINT=${#line} "$1" -m harness -sc query=bash 2>/dev/null | tr ' ' '\n' | grep -v '=_')
  COMPREPLY=($(compgen -o nospace -o default -W "$choices $commands" -- "$word"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _kvlab python python3
