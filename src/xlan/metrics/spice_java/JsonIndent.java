import java.io.IOException;
import java.io.Reader;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import javax.script.AbstractScriptEngine;
import javax.script.Bindings;
import javax.script.ScriptContext;
import javax.script.ScriptEngine;
import javax.script.ScriptEngineFactory;
import javax.script.ScriptException;
import javax.script.SimpleBindings;

/**
 * The one "JavaScript" program that the SPICE scorer runs, for Java 15 and later, which have no JavaScript engine.
 *
 * The scorer hands its finished scores to the engine as the string "jsonString", asks for them to be indented and
 * reads "result". Indentation means nothing to a JSON reader, so the string is handed back as it came. Any other
 * program is refused: this is not a JavaScript engine.
 *
 * Rebuild script-engine.jar (from this folder, with any JDK from 9 to 21):
 *     javac --release 8 -d build JsonIndent.java
 *     mkdir -p build/META-INF/services
 *     echo JsonIndent > build/META-INF/services/javax.script.ScriptEngineFactory
 *     cp JsonIndent.java build
 *     jar cfM script-engine.jar -C build .
 */
public final class JsonIndent implements ScriptEngineFactory {
    static final String PROGRAM = "result = JSON.stringify(JSON.parse(jsonString), null, 2)";

    final class Engine extends AbstractScriptEngine {
        @Override
        public Object eval(String program, ScriptContext context) throws ScriptException {
            Object json = context.getAttribute("jsonString");
            if (!PROGRAM.equals(program.trim()) || !(json instanceof String)) {
                throw new ScriptException("this engine only runs: " + PROGRAM);
            }
            context.setAttribute("result", json, ScriptContext.ENGINE_SCOPE);
            return json;
        }

        @Override
        public Object eval(Reader reader, ScriptContext context) throws ScriptException {
            StringBuilder program = new StringBuilder();
            try {
                for (int letter = reader.read(); letter >= 0; letter = reader.read()) {
                    program.append((char) letter);
                }
            } catch (IOException error) {
                throw new ScriptException(error);
            }
            return eval(program.toString(), context);
        }

        @Override
        public Bindings createBindings() {
            return new SimpleBindings();
        }

        @Override
        public ScriptEngineFactory getFactory() {
            return JsonIndent.this;
        }
    }

    @Override
    public ScriptEngine getScriptEngine() {
        return new Engine();
    }

    @Override
    public List<String> getNames() {
        return Arrays.asList("JavaScript", "javascript", "nashorn", "js");
    }

    @Override
    public List<String> getExtensions() {
        return Collections.singletonList("js");
    }

    @Override
    public List<String> getMimeTypes() {
        return Collections.singletonList("application/javascript");
    }

    @Override
    public String getEngineName() {
        return "xlan JSON indenter";
    }

    @Override
    public String getEngineVersion() {
        return "1";
    }

    @Override
    public String getLanguageName() {
        return "one line of ECMAScript";
    }

    @Override
    public String getLanguageVersion() {
        return "1";
    }

    @Override
    public Object getParameter(String key) {
        return null;
    }

    @Override
    public String getMethodCallSyntax(String object, String method, String... arguments) {
        throw new UnsupportedOperationException();
    }

    @Override
    public String getOutputStatement(String text) {
        throw new UnsupportedOperationException();
    }

    @Override
    public String getProgram(String... statements) {
        throw new UnsupportedOperationException();
    }
}
