#!/usr/bin/env bash
# Guess: the CSV library of DataX (javacsv) writes a text as it is, in quotes where it must be.
# Happens: its writer cuts blanks at both ends of each value, unless it is told to keep them, and writes NULL as nothing.
#   Its reader takes text behind a closing quote away: `"a"x` is `a`.
# Version: javacsv 2.0
# Copes: spark_channel/transform/convert.py
. "$(dirname "$0")/common.bash"
maven net.sourceforge.javacsv:javacsv:2.0
cat >A.java <<'EOF'
import com.csvreader.*;
import java.io.*;

class A {
    public static void main(String[] none) throws Exception {
        StringWriter text = new StringWriter();
        CsvWriter writer = new CsvWriter(text, ',');
        writer.setRecordDelimiter('|');
        writer.writeRecord(new String[] {" a ", "b\t", null, "c"});
        writer.writeRecord(new String[] {" a ", "b\t"}, true);
        writer.flush();
        System.out.println(text.toString().replace("\t", "<TAB>"));
        CsvReader reader = new CsvReader(new StringReader("\"a\"x,b\n"));
        reader.readRecord();
        System.out.println(reader.get(0) + " " + reader.get(1));
    }
}
EOF
observe java -cp "$jars/*" A.java
expect <<'EOF'
a,b,,c|" a ","b<TAB>"|
a b
EOF
