#!/bin/sh
# Makes the repository that examples/workstream.yaml works on: a small program, and tests that all fail.
#
#   sh examples/workstream.sh calculator
set -eu
directory=${1:?usage: workstream.sh DIRECTORY}
mkdir "$directory"
cd "$directory"
git init -q -b main .
mkdir calculator tests
touch calculator/__init__.py tests/__init__.py
printf '/.sdd/\n__pycache__/\n' > .gitignore
for name in add subtract multiply divide; do
    case $name in
        add) expected=9 ;; subtract) expected=3 ;; multiply) expected=18 ;; divide) expected=2 ;;
    esac
    cat > "tests/test_$name.py" <<TEST
import unittest


class Test(unittest.TestCase):
    def test_$name(self):
        from calculator.$name import $name
        self.assertEqual($name(6, 3), $expected)
TEST
done
cat > tests/test_release.py <<'TEST'
import pathlib
import unittest


class Test(unittest.TestCase):
    def test_everything_is_told(self):
        changes = pathlib.Path("CHANGES.md").read_text().splitlines()
        self.assertEqual(sorted(changes), ["- add", "- subtract"])
        self.assertIn("divide", pathlib.Path("MANUAL.md").read_text())
        self.assertEqual(pathlib.Path("VERSION").read_text(), "1.0\n")
TEST
git add .
git -c user.name=example -c user.email=example@localhost commit -qm "A calculator that cannot do anything yet"
