// compose-config FILE prints what Docker Compose makes of a Compose file, as JSON: with the variables of the environment and
// of the file .env beside it. It is `docker compose config` without Docker: the same package reads the file. The program
// that this package comes with reads no variables.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(files []string) error {
	options, err := cli.NewProjectOptions(files, cli.WithOsEnv, cli.WithEnvFiles(), cli.WithDotEnv)
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	text, err := project.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}
