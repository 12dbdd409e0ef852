#!/usr/bin/env bash
# Guess: a job file that DataX runs is JSON, so any other parser of JSON reads it.
# Happens: its parser takes comments, commas too many, keys without quotes, texts in single quotes with `\x41`, a plus and
#   zeros before a number, and line ends in texts; it drops a key whose value is NaN or undefined.
# Version: fastjson 1.2.83
# Copes: spark_channel/datax/json_text.py
. "$(dirname "$0")/common.bash"
maven com.alibaba:fastjson:1.2.83
cat >A.java <<'EOF'
import com.alibaba.fastjson.*;

class A {
    public static void main(String[] none) {
        String[] texts = {
            "/* a */ {\"a\": 1 // b\n}", "{\"a\": [1,,2,],,}", "{a: 'x\\x41\"'}", "{\"a\": +01}", "{\"a\": \"x\ny\"}",
            "{\"a\": NaN, \"b\": undefined, \"c\": 1}",
        };
        for (String text : texts) {
            System.out.println(text.replace("\n", "|") + " -> " + JSON.parse(text));
        }
    }
}
EOF
observe java -cp "$jars/*" A.java
expect <<'EOF'
/* a */ {"a": 1 // b|} -> {"a":1}
{"a": [1,,2,],,} -> {"a":[1,2]}
{a: 'x\x41"'} -> {"a":"xA\""}
{"a": +01} -> {"a":1}
{"a": "x|y"} -> {"a":"x\ny"}
{"a": NaN, "b": undefined, "c": 1} -> {"c":1}
EOF
